#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file.h"
#include "common/sha256.h"
#include "model/stored_tensor.h"

namespace baton {

// SHA-256 of the file's content.
//
// Kept in `<cache_folder>/fingerprints/<SHA-256 of the path>`, so that a big file is read once and
// not at every start. An entry counts only while the file's size, inode, and times of change are
// the same, and is not made for a file that changed within the last two seconds. No `cache_folder`
// or a failure to read or write there is no error: the digest is then computed.
Digest FileDigest(const MappedFile& file, const std::string& cache_folder);

// The model fingerprint of DESIGN.md section 3, "Block identity": SHA-256 over the tensors sorted
// by name, each as u32 length and name, u32 length and type name, u32 rank, u64 dimensions
// outermost first, all little-endian; then over `file_digests`. One file has one digest; of a
// directory they are those of config.json and of each weight file, in the order of their names.
Digest ModelFingerprint(std::vector<StoredTensor> tensors, std::span<const Digest> file_digests);

}  // namespace baton
