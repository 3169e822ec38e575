"""Kill processes and cut the power: acknowledged writes must survive."""
