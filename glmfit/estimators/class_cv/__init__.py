"""Models of classes with a penalty strength chosen by cross-validation."""
