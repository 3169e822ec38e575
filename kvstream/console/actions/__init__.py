"""What users may do: each action is a plan, which a page shows before it is run."""
