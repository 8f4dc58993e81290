// The Kueue whose kinds the tests install: the CustomResourceDefinitions are files of its module
// (tests/localcluster/neighbours.py).
module gputile/kueue

go 1.26.6

require sigs.k8s.io/kueue v0.18.3
