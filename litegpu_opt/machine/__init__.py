"""The accelerator: what is chosen, what physics and the market allow, and what follows."""
