"""Contains the services of the whole cluster: extender, controller and webhook."""
