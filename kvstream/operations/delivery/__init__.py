"""What a group with a policy delivers, repeats, keeps in order and gives up."""
