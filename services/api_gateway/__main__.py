"""`python -m services.api_gateway`: one gateway process."""

from libs.common.process.service import run
from services.api_gateway.service import main

if __name__ == "__main__":
    run("api_gateway", main)
