"""What tests stand on: servers on free loopback ports, tenants, waiting for locks, real processes."""
