"""From a published row to a plan on a machine: what its words mean, and what is assumed where it is silent."""
