"""A real Kubernetes control plane on this machine, with simulated nodes.

The end-to-end tests, ``make cluster`` and the benchmarks start it: etcd, kube-apiserver, kube-controller-manager and
any number of kube-schedulers as ordinary processes, each run in a directory of its own, nothing installed and nothing
left behind. ``ControlPlane`` is the way in.
"""
