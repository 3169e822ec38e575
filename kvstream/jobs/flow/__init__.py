"""The rules of flow of tasks, and the jobs that they keep from running."""
