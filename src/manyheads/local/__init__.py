"""What happens on a client: training and its losses."""
