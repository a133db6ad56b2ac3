"""Training: clipping, loss scaling, dropout, initialisation and optimizers of what is cut."""
