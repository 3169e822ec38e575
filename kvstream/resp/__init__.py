"""RESP2 and RESP3 without sockets: bytes in, requests out; reply values in, bytes out."""
