"""The commands of queues and jobs."""
