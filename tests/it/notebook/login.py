"""Opens a notebook on a server that requires a password: login.py URL PASSWORD PATH.

Prints the id of the kernel.
"""

import json
import sys
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar

url, password, path = sys.argv[1:]
cookies = CookieJar()
browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
browser.open(url + "login").read()
(xsrf,) = [cookie.value for cookie in cookies if cookie.name == "_xsrf"]
form = urllib.parse.urlencode({"password": password, "_xsrf": xsrf})
request = urllib.request.Request(url + "login", form.encode())
try:
    browser.open(request).read()
except urllib.error.HTTPError as error:
    # The server redirects to the page of a front end that is not installed.
    if error.code != 404:
        raise
# The server can have sent another cookie after the login.
xsrf = [cookie.value for cookie in cookies if cookie.name == "_xsrf"][-1]
session = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
request = urllib.request.Request(
    url + "api/sessions", json.dumps(session).encode(), {"X-XSRFToken": xsrf}
)
print(json.load(browser.open(request))["kernel"]["id"])
