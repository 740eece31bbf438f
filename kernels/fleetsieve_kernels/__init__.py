"""JAX numerics of FleetSieve: arrays in, arrays out."""
