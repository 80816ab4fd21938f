"""Several servers and several machines: placement on cores and GPUs, Ray, Kubernetes."""
