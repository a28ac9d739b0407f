"""Who goes next: fair queues between tenants and jobs."""
