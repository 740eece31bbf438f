"""A study or a replay as one HTML file that anybody can read."""
