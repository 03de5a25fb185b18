"""Serve a call that was made before by compiled code, without Python between the call and its messages."""
