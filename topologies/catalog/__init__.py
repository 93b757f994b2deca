"""Data: one TOML file for each GPU, CPU, NIC and machine."""
