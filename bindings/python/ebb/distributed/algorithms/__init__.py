"""The namespaces of torch.distributed.algorithms."""
