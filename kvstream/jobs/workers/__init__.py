"""The workers of an application as its store knows them: who is there, requests, and stacks."""
