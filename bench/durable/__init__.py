"""Server CPU of durable jobs: ten steps in one job beside ten plain jobs; what sleeping jobs cost."""
