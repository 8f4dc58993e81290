"""GPU node pools of the public clouds: a short description becomes the commands and manifests of each provider (G6)."""
