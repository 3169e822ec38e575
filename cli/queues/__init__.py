"""The commands of queues: messages, dead letters, delays, schedules, jobs and workers."""
