"""A package that trains when it is run with python -m package_demo."""
