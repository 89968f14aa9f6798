"""The first file of the packed program: `python3 -I pull.pyz REPOSITORY`."""

from libs.job.pulling.command import main

if __name__ == "__main__":
    main()
