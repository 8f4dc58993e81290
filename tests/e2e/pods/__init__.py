"""gputile installed by Helm, its components as pods on real kubelets, out of the image that a release has."""
