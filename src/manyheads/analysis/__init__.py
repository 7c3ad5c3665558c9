"""What can be seen in a run: features, what a prediction looks at, gradients, guidance. Each draws a picture."""
