//! The limits that crates share, each with its reason. Relations between them are checked at
//! compile time. A limit of one crate stands where it is used.

/// Host memory page the PRP entries speak of (NVMe MPS), bytes.
pub const PAGE: usize = 4096;
/// Granularity at which big files are updated in place (DPC 3.4), bytes.
pub const BLOCK: usize = 8192;
/// Largest small file: data up to and including this many bytes lives in one key-value pair
/// (DPC 3.4 leaves exactly 8 KiB open; see `docs/internals/kvfs-data.md`).
pub const SMALL_FILE_MAX: usize = BLOCK;
/// Longest name of a directory entry on the wire (DPC 3.4), bytes.
pub const NAME_MAX: usize = 1024;
/// Longest name the kernel's front-ends can carry (`NAME_MAX` of `limits.h`), bytes.
pub const NAME_MAX_KERNEL: usize = 255;
/// Longest symbolic link target, bytes (`PATH_MAX` less its terminator).
pub const SYMLINK_MAX: usize = 4095;
/// Longest extended attribute name, bytes (`XATTR_NAME_MAX`).
pub const XATTR_NAME_MAX: usize = 255;
/// Largest extended attribute value, bytes (`XATTR_SIZE_MAX`).
pub const XATTR_SIZE_MAX: usize = 65_536;
/// Longest list of extended attribute names, bytes (`XATTR_LIST_MAX`).
pub const XATTR_LIST_MAX: usize = 65_536;
/// Hard links to one file (ext4 allows 65,000; nothing here needs more).
pub const LINK_MAX: u32 = 65_000;
/// Largest file: 16 TiB, what an index page count of 2^26 reaches.
pub const FILE_SIZE_MAX: u64 = 16 << 40;
/// Most payload bytes one request carries in one direction: 256 pages, the most the kernel's FUSE
/// sends by default, and a PRP list of 2 KiB.
pub const IO_MAX: usize = 1 << 20;
/// Supplementary groups a request carries.
pub const GROUPS_MAX: usize = 64;
/// Most locks one attachment may hold or wait for. Calls walk the locks of a file, so this bounds
/// the work a hostile host can ask for, not only the memory (about 64 bytes each).
pub const LOCKS_MAX: usize = 1 << 13;
/// Largest encoded request header (WH): fixed part, groups, and two names.
pub const REQUEST_HEADER_MAX: usize = 2560;
/// Largest encoded reply header (RH).
pub const REPLY_HEADER_MAX: usize = 256;

const _: () = assert!(BLOCK.is_multiple_of(PAGE) && IO_MAX.is_multiple_of(BLOCK));
// Fixed part and body take at most 192 bytes.
const _: () = assert!(192 + GROUPS_MAX * 4 + 2 * NAME_MAX <= REQUEST_HEADER_MAX);
