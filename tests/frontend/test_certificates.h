#pragma once

#include <string>

namespace baton {

// A throw-away authority and a certificate of it for 127.0.0.1 and localhost, as PEM files in
// `folder`: ca.pem, cert.pem and key.pem. Valid for an hour.
void WriteTestCertificates(const std::string& folder);

}  // namespace baton
