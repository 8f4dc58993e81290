"""Contains the services beside the API server and kube-scheduler: extender, controller and webhook."""
