"""Reviews a pod before it is stored: converts legacy settings, and completes or refuses the pod."""
