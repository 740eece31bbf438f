"""Options of the tests."""


def pytest_addoption(parser):
    parser.addoption(
        "--engines", action="store_true", help="also the tests with the real engines that are here"
    )
