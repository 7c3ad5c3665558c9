"""What a run has to say: tables for the terminal, and pictures. Reads run folders only; needs no torch."""
