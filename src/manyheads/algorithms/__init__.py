"""The methods, one file each. The registry is this folder."""
