"""`python -m weft`, and `torchrun -m weft`: the command line."""

from weft.cli import main

if __name__ == "__main__":
    main(prog_name="weft")
