"""What operators ask of jobs: lists, counts, tries, and changes of many."""
