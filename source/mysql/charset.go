package mysql

import (
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/japanese"
	"golang.org/x/text/encoding/korean"
	"golang.org/x/text/encoding/simplifiedchinese"
	"golang.org/x/text/encoding/traditionalchinese"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/encoding/unicode/utf32"
)

// charsets are the server's character sets that can be read from the log, which has
// texts in the column's own; nil: UTF-8 already. The server's latin1 is Windows-1252.
var charsets = map[string]encoding.Encoding{
	"utf8mb4": nil, "utf8mb3": nil, "utf8": nil, "ascii": nil, "binary": nil, "": nil,
	"latin1": charmap.Windows1252, "latin2": charmap.ISO8859_2, "latin5": charmap.ISO8859_9, "latin7": charmap.ISO8859_13,
	"greek": charmap.ISO8859_7, "hebrew": charmap.ISO8859_8, "cp1250": charmap.Windows1250, "cp1251": charmap.Windows1251,
	"cp1256": charmap.Windows1256, "cp1257": charmap.Windows1257, "cp850": charmap.CodePage850, "cp852": charmap.CodePage852,
	"cp866": charmap.CodePage866, "koi8r": charmap.KOI8R, "koi8u": charmap.KOI8U, "macroman": charmap.Macintosh, "tis620": charmap.Windows874,
	"gbk": simplifiedchinese.GBK, "gb2312": simplifiedchinese.GBK, "gb18030": simplifiedchinese.GB18030, "big5": traditionalchinese.Big5,
	"sjis": japanese.ShiftJIS, "cp932": japanese.ShiftJIS, "ujis": japanese.EUCJP, "eucjpms": japanese.EUCJP, "euckr": korean.EUCKR,
	"ucs2": unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM), "utf16": unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM),
	"utf16le": unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM), "utf32": utf32.UTF32(utf32.BigEndian, utf32.IgnoreBOM),
}

// transcoder turns texts of one character set into UTF-8.
type transcoder struct {
	decoder *encoding.Decoder
	plain   bool // ASCII bytes stand for themselves, whatever is around them
}

// newTranscoder returns nil for a character set that needs none, and known false for
// one that cannot be read.
func newTranscoder(charset string) (t *transcoder, known bool) {
	e, known := charsets[charset]
	if e == nil {
		return nil, known
	}
	switch charset {
	case "ucs2", "utf16", "utf16le", "utf32":
		return &transcoder{decoder: e.NewDecoder()}, true
	}
	return &transcoder{decoder: e.NewDecoder(), plain: true}, true
}

// append appends text in UTF-8.
func (t *transcoder) append(dst, text []byte) ([]byte, error) {
	if t.plain && isASCII(text) {
		return append(dst, text...), nil
	}
	out, err := t.decoder.Bytes(text)
	return append(dst, out...), err
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
