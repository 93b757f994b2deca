"""Networks that take noise out of latents."""
