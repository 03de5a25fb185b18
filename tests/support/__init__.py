"""What tests share: cases, memory of every form, calls made in every way, the checks on what came of them."""
