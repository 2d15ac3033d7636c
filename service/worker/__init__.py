"""The worker host: finds due tenants, leases their jobs, executes bodies, settles them, keeps leases alive."""
