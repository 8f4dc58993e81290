"""What beside the chart itself belongs to it: the description of its dashboards."""
