"""Quadratic penalties with strengths of every fit and term: all fits by Newton steps with Hessians of their own."""
