"""The stream commands: pure decisions over a transaction, one family of commands a module.

Each takes the transaction, the qualified name of a key, and values already parsed; it checks all of
its input before it changes anything, and raises the error that Redis would answer.
"""
