"""Models of classes whose strength of penalty is chosen by cross-validation."""
