"""Run plans: the engines, which alone post messages."""
