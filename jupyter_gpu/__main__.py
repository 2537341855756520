"""``python -m jupyter_gpu`` is ``jupyter gpu``."""

from jupyter_gpu.cli import main

if __name__ == "__main__":
    main()
