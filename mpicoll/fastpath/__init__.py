"""Serve calls like earlier ones in compiled code, without Python between the call and its messages."""
