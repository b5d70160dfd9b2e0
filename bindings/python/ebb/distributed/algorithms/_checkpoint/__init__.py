"""The namespaces of torch.distributed.algorithms._checkpoint."""
